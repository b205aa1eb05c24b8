"""Many traces of one job, compared label by label: who is slow, who waits for whom, what it costs.

sources.find --(one job per trace, in parallel: command.py, spread.py)--> summary.summaries
    --> collectives.join --> compare.compare --> page

Everything from the summaries on is pure: the same summaries give the same comparison, wherever they
were made.
"""
