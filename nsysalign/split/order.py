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

from nsysalign.intervals import FAR, group, pick
from nsysalign.model import CALL, KIND, SYNC_CALLS
from nsysalign.split.gaps import NEVER, Explainer

#: Calls after which the host knows that work is done, if they succeed.
_KNOWING = (*SYNC_CALLS, "query_event", "query_stream")


class StreamOrder:
    """The order between the streams of a trace, built once."""

    def __init__(self, explainer: Explainer) -> None:
        self._explainer = explainer
        waits, records = explainer.alignment.wait_calls, explainer.alignment.records
        record = waits["record"].to_numpy()
        known = waits.assign(
            issue=explainer.call_start[waits["call"].to_numpy()],
            of=pick(records["lane"].to_numpy(), record, -1),
            recorded=pick(
                explainer.call_start, pick(records["call"].to_numpy(), record, -1), NEVER
            ),
        )
        known = known[known["lane"] >= 0].sort_values("issue", kind="stable")
        #: Waiting stream -> stream waited for -> when the waits were issued, and the latest record
        #: that all of them up to each wait for.
        self._waits: dict[int, dict[int, tuple[np.ndarray, np.ndarray]]] = {}
        #: Per waiting stream: when it was made to wait for something that the trace does not tell.
        self._untold: dict[int, np.ndarray] = {}
        for (lane, of), rows in known.groupby(["lane", "of"]):
            issue = rows["issue"].to_numpy()
            if of < 0:
                self._untold[int(lane)] = issue
            elif of != lane:
                latest = np.maximum.accumulate(rows["recorded"].to_numpy())
                self._waits.setdefault(int(lane), {})[int(of)] = issue, latest
        #: Per process, when synchronisations and successful queries returned.
        self._returned: dict[int, np.ndarray] = {}

    def horizons(self, lane: int, close_ns: np.ndarray) -> dict[int, np.ndarray]:
        """Per stream that a record on `lane` is ordered behind, the horizon for each record, whose
        calls begin at `close_ns`."""
        out = {lane: close_ns}
        changed = [lane]
        while changed:
            waiting = changed.pop()
            for of, reached in self._one_step(waiting, out[waiting]).items():
                before = out.get(of, np.full(len(close_ns), NEVER))
                if (reached > before).any():
                    out[of] = np.maximum(reached, before)
                    changed.append(of)
        return out

    def _one_step(self, waiting: int, horizon: np.ndarray) -> dict[int, np.ndarray]:
        """Horizons of the streams that one stream itself waited for before its own."""
        out = {}
        for of, (issue, recorded) in self._waits.get(waiting, {}).items():
            out[of] = pick(recorded, np.searchsorted(issue, horizon) - 1, NEVER)
        for of in self._explainer.default_stream_rivals(waiting):
            out[of] = horizon
        return out

    def _is_behind(
        self, lane: int, close_ns: np.ndarray, other: int, horizon: np.ndarray
    ) -> np.ndarray:
        """Bool, per record on `lane`: whether it is ordered behind everything that was issued to the
        stream `other` before its call, or may be, as it waits for something untold."""
        explainer = self._explainer
        ops = explainer.per_lane[other]
        last = np.searchsorted(ops.times.issue_ns, close_ns) - 1
        issued = pick(ops.times.issue_ns, last, NEVER)
        position = pick(ops.position, last, -1)
        untold = self._untold.get(lane, np.empty(0, np.int64))
        waited = pick(untold, np.searchsorted(untold, close_ns) - 1, NEVER) > issued
        # nodes of a graph may run on streams of its own: it was launched into this one
        launch = pick(explainer.call, position, -1)
        here = explainer.call[explainer.streams.positions(lane)]
        together = (launch >= 0) & np.isin(launch, here)
        seen = self._seen_to_end(lane, position, close_ns)
        return (issued < horizon) | seen | waited | together

    def _seen_to_end(self, lane: int, operation: np.ndarray, close_ns: np.ndarray) -> np.ndarray:
        """Bool, per operation: whether the host knew before `close_ns` that it had ended: a
        synchronisation or successful query after it, or its own copy call, returned in between.  An
        operation that happened to end by then is not ordered."""
        explainer = self._explainer
        process = int(explainer.alignment.lanes["process"].iloc[lane])
        if process not in self._returned:
            calls = explainer.trace.calls
            knows = np.isin(calls["kind"].to_numpy(), [CALL[kind] for kind in _KNOWING])
            knows &= (calls["return_value"] == 0).to_numpy()
            knows &= (calls["process"] == process).to_numpy()
            self._returned[process] = np.sort(explainer.call_end[knows])
        returned = self._returned[process]
        end = pick(explainer.op_end, operation, FAR)
        called = pick(explainer.call_end, pick(explainer.call, operation, -1), FAR)
        copied = (pick(explainer.kind, operation, -1) == KIND["memcpy"]) & (end <= called)
        waited = np.searchsorted(returned, end) < np.searchsorted(returned, close_ns, side="right")
        return (end <= close_ns) & (copied | waited)

    def ordered(self, lane: np.ndarray, close_ns: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Bool, per row: whether a record on the stream `lane`, whose call begins at `close_ns`, is
        ordered behind what was issued to the stream `other` before."""
        out = np.zeros(len(lane), dtype=bool)
        for number, rows in group(lane, np.arange(len(lane))).items():
            horizons = self.horizons(number, close_ns[rows])
            nothing = np.full(len(rows), NEVER)
            for stream, those in group(other[rows], np.arange(len(rows))).items():
                horizon = horizons.get(stream, nothing)[those]
                asked = rows[those]
                out[asked] = self._is_behind(number, close_ns[asked], stream, horizon)
        return out
