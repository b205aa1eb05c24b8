"""Many traces of one job: summaries of ranks -> common clock -> matching collectives -> labels side by side.

sources.find --(one job per trace, in parallel: command.py)--> summary.summaries --> join.join --> compare.compare

Everything from the summaries on is pure: the same summaries give the same comparison, wherever they were made.
"""
