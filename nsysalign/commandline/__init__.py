"""What commands have in common, wherever they live: options, files, progress, and the way from a
path to shown results.

cli.py -> commands/*.py and the rooms' own commands (ranks, compare, measure) -> commandline ->
engine
"""
