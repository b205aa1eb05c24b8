"""Whether an end record is ordered behind work on other streams: by waits, by the order of the legacy
default stream, or because the host had seen the work end.

    end's stream 7     |start              wait----|wait is over |end       ordered behind A, not behind B
    stream 13            [A........] r13 - - - - - ^
    stream 14                  [B..................................]

issued    by when the host began the call that launches an operation
horizon   of a stream, for one end record: a time of the host; all work that was issued to the
          stream before this time ends before the end record

The horizon of the end record's own stream is the start of the record's call.  If a stream waits for
a record of another stream, by a wait that was issued before its own horizon, then the horizon of the
other stream is at least the start of that record's call.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from nsysalign.intervals import FAR, group, pick
from nsysalign.model import CALL, KIND, SYNC_CALLS
from nsysalign.split.gaps import BEFORE_ALL, Explainer

#: Calls after which the host knows that work is done, if they succeed.
_KNOWING = (*SYNC_CALLS, "query_event", "query_stream")


class StreamOrder:
    """The order between the streams of a trace, built once."""

    def __init__(self, explainer: Explainer) -> None:
        self._explainer = explainer
        #: Waiting lane -> lane waited for -> (when each wait was issued, rising; when the latest
        #: record was made that this wait or one before it waits for).
        self._waits: dict[int, dict[int, tuple[np.ndarray, np.ndarray]]] = {}
        #: Waiting lane -> when waits were issued of which the trace does not say what for.
        self._unknown_waits: dict[int, np.ndarray] = {}
        #: Process -> when its synchronisations and successful queries returned, rising.
        self._returned: dict[int, np.ndarray] = {}
        for (lane, source), rows in self._known_waits().groupby(["lane", "source"]):
            issue = rows["issue"].to_numpy()
            if source < 0:
                self._unknown_waits[int(lane)] = issue
            elif source != lane:
                latest = np.maximum.accumulate(rows["recorded"].to_numpy())
                self._waits.setdefault(int(lane), {})[int(source)] = issue, latest

    def _known_waits(self) -> pd.DataFrame:
        """Return `alignment.wait_calls` with a known lane, sorted by time of issue.

        These columns are added:

        issue:    when the wait was issued (ns)
        source:   the lane of the record that it waits for, -1 if that is not known
        recorded: when the call began that made this record (ns), BEFORE_ALL if that is not known
        """
        explainer = self._explainer
        waits, records = explainer.alignment.wait_calls, explainer.alignment.records
        record = waits["record"].to_numpy()
        record_call = pick(records["call"].to_numpy(), record, -1)
        waits = waits.assign(
            issue=explainer.call_start[waits["call"].to_numpy()],
            source=pick(records["lane"].to_numpy(), record, -1),
            recorded=pick(explainer.call_start, record_call, BEFORE_ALL),
        )
        return waits[waits["lane"] >= 0].sort_values("issue", kind="stable")

    def horizons(self, lane: int, close_ns: np.ndarray) -> dict[int, np.ndarray]:
        """Return lane -> its horizon (ns) for each end record, for all lanes that have one.

        lane:     the lane of the end records
        close_ns: when the call of each end record begins
        """
        horizons = {lane: close_ns}
        # what a lane waits for is ordered before whatever waits for that lane: follow until no horizon moves
        changed = [lane]
        while changed:
            waiting = changed.pop()
            for source, reached in self._horizons_by_waits(waiting, horizons[waiting]).items():
                before = horizons.get(source, np.full(len(close_ns), BEFORE_ALL))
                if (reached > before).any():
                    horizons[source] = np.maximum(reached, before)
                    changed.append(source)
        return horizons

    def _horizons_by_waits(self, waiting: int, horizon: np.ndarray) -> dict[int, np.ndarray]:
        """Return lane -> its horizon, for the lanes that one lane is itself ordered behind.

        waiting: this lane
        horizon: its own horizon (ns), for each end record
        """
        horizons = {}
        for source, (issue, recorded) in self._waits.get(waiting, {}).items():
            last_wait = np.searchsorted(issue, horizon) - 1
            horizons[source] = pick(recorded, last_wait, BEFORE_ALL)
        for partner in self._explainer.default_stream_partners(waiting):
            horizons[partner] = horizon
        return horizons

    def _is_behind(
        self, lane: int, close_ns: np.ndarray, other_lane: int, horizon: np.ndarray
    ) -> np.ndarray:
        """Return, per end record, whether all work that was issued to another lane (stream) before the record's call
        ends before the record.  A stream runs its work in the order of issue, so the last operation of the other lane
        alone decides.  True also where that may be so, because the record's lane waits for something that the trace
        does not name: to call work unordered that is ordered would be a false alarm.

        lane:       the lane of the end records
        close_ns:   when the call of each end record begins
        other_lane: the other lane
        horizon:    for each end record, a time of the host (ns); work that was issued to the other lane
                    before this time ends before the record.  BEFORE_ALL: no work does

        host     issue A    issue B             close          the last operation before the end record is B: is the
        horizon        ^                                       record behind B?  By its horizon it is behind A alone
        """
        explainer = self._explainer
        operations = explainer.per_lane[other_lane]
        # the last operation that was issued to the other lane before the record.  There is one: the caller asks for
        # lanes to which an interval issued work; for -1 (none) the answer means nothing
        last = np.searchsorted(operations.times.call_start_ns, close_ns) - 1
        issue = pick(operations.times.call_start_ns, last, BEFORE_ALL)
        operation = pick(operations.position, last, -1)
        is_before_horizon = issue < horizon
        # the host knew that it had ended, before it issued the record
        is_seen = self._seen_to_end(lane, operation, close_ns)
        # the record's lane has waited since for something that the trace does not name
        unknown_waits = self._unknown_waits.get(lane, np.empty(0, np.int64))
        last_wait = np.searchsorted(unknown_waits, close_ns) - 1
        may_be_waited_for = pick(unknown_waits, last_wait, BEFORE_ALL) > issue
        # The nodes of a graph may run on several streams, and the graph ends when all of them have
        # ended: the record comes after its graph if the same call launched work on its lane.
        call = pick(explainer.call, operation, -1)
        operations_of_lane = explainer.streams.positions(lane)
        calls_of_lane = explainer.call[operations_of_lane]
        in_same_graph = (call >= 0) & np.isin(call, calls_of_lane)
        return is_before_horizon | is_seen | may_be_waited_for | in_same_graph

    def _seen_to_end(self, lane: int, operation: np.ndarray, close_ns: np.ndarray) -> np.ndarray:
        """Return, per end record, whether the host knew before it that an operation had ended.

        The host knows it if a synchronisation or a successful query returned in between, or the
        operation's own copy call.  An operation that only happened to end by then does not count.

        GPU      BBBBBBB
        host        [synchronise)  [record)         the host knew that B had ended
        host                       [record)         it did not know

        lane:      the lane of the end records
        operation: the position of an operation for each end record, -1 for none
        close_ns:  when the call of each end record begins
        """
        explainer = self._explainer
        process = int(explainer.alignment.lanes["process"].iloc[lane])
        if process not in self._returned:
            self._returned[process] = self._return_times(process)
        returned = self._returned[process]
        end = pick(explainer.op_end, operation, FAR)
        call = pick(explainer.call, operation, -1)
        call_end = pick(explainer.call_end, call, FAR)
        is_copy = pick(explainer.kind, operation, -1) == KIND["memcpy"]
        seen_by_own_call = is_copy & (end <= call_end)
        # whether a synchronisation or query returned between the operation's end and the record's call
        before_end = np.searchsorted(returned, end)  # how many
        before_close = np.searchsorted(returned, close_ns, side="right")
        seen_by_wait = before_end < before_close
        return (end <= close_ns) & (seen_by_own_call | seen_by_wait)

    def _return_times(self, process: int) -> np.ndarray:
        """Return when calls of a process ended after which the host knows that work is done, rising."""
        calls = self._explainer.trace.calls
        knows = np.isin(calls["kind"].to_numpy(), [CALL[kind] for kind in _KNOWING])
        knows &= (calls["return_value"] == 0).to_numpy()
        knows &= (calls["process"] == process).to_numpy()
        return np.sort(self._explainer.call_end[knows])

    def ordered(self, lane: np.ndarray, close_ns: np.ndarray, stream: np.ndarray) -> np.ndarray:
        """Return, per row, whether an end record is ordered behind all work that was issued to another
        lane before it.

        lane:     the lane of each end record
        close_ns: when its call begins
        stream:   the other lane
        """
        out = np.zeros(len(lane), dtype=bool)
        for record_lane, on_lane in group(lane, np.arange(len(lane))).items():
            horizons = self.horizons(record_lane, close_ns[on_lane])
            never = np.full(len(on_lane), BEFORE_ALL)
            for other_lane, places in group(stream[on_lane], np.arange(len(on_lane))).items():
                horizon = horizons.get(other_lane, never)[places]
                rows = on_lane[places]
                out[rows] = self._is_behind(record_lane, close_ns[rows], other_lane, horizon)
        return out
