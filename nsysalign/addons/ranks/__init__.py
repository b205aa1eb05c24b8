"""Many traces of one job, compared label by label: who is slow, who waits for whom, what it costs.

work.find --(one job per trace: work.one, here or on a cluster)--> records.RankSummary
    --> collectives.join --> compare.compare --> page

From the summaries on everything is pure: the same summaries give the same comparison.
"""
