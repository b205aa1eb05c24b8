"""Many traces of one job, compared label by label: who is slow, who waits for whom, what it costs.

work.find --(work.one for each trace, here or on a cluster)--> records.RankSummary
    --> collectives.join --> compare.compare --> words

From the summaries on everything is pure: the same summaries give the same comparison.
"""
