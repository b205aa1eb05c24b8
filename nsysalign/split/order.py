"""Whether an end record is ordered behind work on other streams: by waits, by the order of the legacy
default stream, or because the host had seen the work end.

    end's stream 7     |start              wait----|wait is over |end       ordered behind A, not behind B
    stream 13            [A........] r13 - - - - - ^
    stream 14                  [B..................................]

The *horizon* of a stream is a time of the host: what was issued to the stream before it ends before
the end record does.  That of the record's own stream is its call; a wait before a stream's horizon
carries it to the record that is waited for.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from nsysalign.intervals import FAR, group, pick
from nsysalign.model import CALL, KIND, SYNC_CALLS
from nsysalign.split.gaps import NEVER, Explainer

#: Calls after which the host knows that work is done, if they succeed.
_KNOWING = (*SYNC_CALLS, "query_event", "query_stream")


class StreamOrder:
    """The order between the streams of a trace, built once."""

    def __init__(self, explainer: Explainer) -> None:
        self._explainer = explainer
        #: Waiting stream -> stream waited for -> when the waits were issued, and the latest record
        #: that all of them up to each wait for.
        self._waits: dict[int, dict[int, tuple[np.ndarray, np.ndarray]]] = {}
        #: Per waiting stream: when it was made to wait for something that the trace does not tell.
        self._untold: dict[int, np.ndarray] = {}
        #: Per process, when synchronisations and successful queries returned.
        self._returned: dict[int, np.ndarray] = {}
        for (lane, source), rows in self._known_waits().groupby(["lane", "source"]):
            issue = rows["issue"].to_numpy()
            if source < 0:
                self._untold[int(lane)] = issue
            elif source != lane:
                latest = np.maximum.accumulate(rows["recorded"].to_numpy())
                self._waits.setdefault(int(lane), {})[int(source)] = issue, latest

    def _known_waits(self) -> pd.DataFrame:
        """Waits of streams by when they were issued (`issue`); the stream of the record that they wait
        for (`source`, -1: unknown), and when that was recorded (`recorded`)."""
        explainer = self._explainer
        waits, records = explainer.alignment.wait_calls, explainer.alignment.records
        record = waits["record"].to_numpy()
        record_call = pick(records["call"].to_numpy(), record, -1)
        waits = waits.assign(
            issue=explainer.call_start[waits["call"].to_numpy()],
            source=pick(records["lane"].to_numpy(), record, -1),
            recorded=pick(explainer.call_start, record_call, NEVER),
        )
        return waits[waits["lane"] >= 0].sort_values("issue", kind="stable")

    def horizons(self, lane: int, close_ns: np.ndarray) -> dict[int, np.ndarray]:
        """Per stream that a record on `lane` is ordered behind, the horizon for each record, whose
        calls begin at `close_ns`."""
        horizons = {lane: close_ns}
        changed = [lane]
        while changed:
            waiting = changed.pop()
            for source, reached in self._one_step(waiting, horizons[waiting]).items():
                before = horizons.get(source, np.full(len(close_ns), NEVER))
                if (reached > before).any():
                    horizons[source] = np.maximum(reached, before)
                    changed.append(source)
        return horizons

    def _one_step(self, waiting: int, horizon: np.ndarray) -> dict[int, np.ndarray]:
        """Horizons of the streams that one stream itself waited for before its own."""
        horizons = {}
        for source, (issue, recorded) in self._waits.get(waiting, {}).items():
            horizons[source] = pick(recorded, np.searchsorted(issue, horizon) - 1, NEVER)
        for rival in self._explainer.default_stream_rivals(waiting):
            horizons[rival] = horizon
        return horizons

    def _is_behind(
        self, lane: int, close_ns: np.ndarray, stream: int, horizon: np.ndarray
    ) -> np.ndarray:
        """Bool, per record on `lane`: whether it is ordered behind everything that was issued to
        another stream before its call, or may be, as it waits for something untold."""
        explainer = self._explainer
        ops = explainer.per_lane[stream]
        last = np.searchsorted(ops.times.issue_ns, close_ns) - 1
        issued = pick(ops.times.issue_ns, last, NEVER)
        position = pick(ops.position, last, -1)
        untold = self._untold.get(lane, np.empty(0, np.int64))
        waited = pick(untold, np.searchsorted(untold, close_ns) - 1, NEVER) > issued
        # nodes of a graph may run on streams of its own: it was launched into this one
        launch = pick(explainer.call, position, -1)
        launches = explainer.call[explainer.streams.positions(lane)]
        together = (launch >= 0) & np.isin(launch, launches)
        seen = self._seen_to_end(lane, position, close_ns)
        return (issued < horizon) | seen | waited | together

    def _seen_to_end(self, lane: int, operation: np.ndarray, close_ns: np.ndarray) -> np.ndarray:
        """Bool, per operation: whether the host knew before `close_ns` that it had ended: a
        synchronisation or successful query after it, or its own copy call, returned in between.  An
        operation that happened to end by then is not ordered."""
        explainer = self._explainer
        process = int(explainer.alignment.lanes["process"].iloc[lane])
        if process not in self._returned:
            self._returned[process] = self._returns(process)
        returned = self._returned[process]
        end = pick(explainer.op_end, operation, FAR)
        called = pick(explainer.call_end, pick(explainer.call, operation, -1), FAR)
        copied = (pick(explainer.kind, operation, -1) == KIND["memcpy"]) & (end <= called)
        waited = np.searchsorted(returned, end) < np.searchsorted(returned, close_ns, side="right")
        return (end <= close_ns) & (copied | waited)

    def _returns(self, process: int) -> np.ndarray:
        """When calls of a process returned after which the host knew that work was done, sorted."""
        calls = self._explainer.trace.calls
        knows = np.isin(calls["kind"].to_numpy(), [CALL[kind] for kind in _KNOWING])
        knows &= (calls["return_value"] == 0).to_numpy()
        knows &= (calls["process"] == process).to_numpy()
        return np.sort(self._explainer.call_end[knows])

    def ordered(self, lane: np.ndarray, close_ns: np.ndarray, stream: np.ndarray) -> np.ndarray:
        """Bool, per row: whether a record on `lane`, whose call begins at `close_ns`, is ordered behind
        what was issued to the other `stream` before."""
        out = np.zeros(len(lane), dtype=bool)
        for number, rows in group(lane, np.arange(len(lane))).items():
            horizons = self.horizons(number, close_ns[rows])
            never = np.full(len(rows), NEVER)
            for source, places in group(stream[rows], np.arange(len(rows))).items():
                horizon = horizons.get(source, never)[places]
                asked = rows[places]
                out[asked] = self._is_behind(number, close_ns[asked], source, horizon)
        return out
