"""The table of what re-runs said."""

from nsysalign.frames import specs

(CONFIRMATIONS,) = TABLES = specs("""
confirmations: what a re-run with one intervention said about a cause (nsysalign confirm)
    label              str      the label whose cause was put to the test
    rules              object   tuple of the rules whose findings about it this settles
    intervention       str      delay or synchronize: what was done before its start records
    verdict            str      confirmed, refuted or unclear
    reason             str      the verdict in words
    before_ns          float64  midmean of the measured times without the intervention
    predicted_ns       float64  what the budget predicts with it
    predicted_low_ns   float64  least that agrees with the prediction
    predicted_high_ns  float64  most that agrees with the prediction
    after_ns           float64  the same in the re-run, NaN where there was none to compare
    after_low_ns       float64  its lower bound (95 %)
    after_high_ns      float64  its upper bound (95 %)
    before_count       int64    intervals compared, before
    after_count        int64    intervals compared, after
    changed            str      what was changed in the re-run
    run                str      folder of the re-run, relative to the run directory, '' unknown
""")
