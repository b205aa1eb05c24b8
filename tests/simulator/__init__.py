"""A discrete-event simulator of CUDA streams that knows the truth about what it wrote: a test tool.

program.Program --machine.run--> world.World --export.write--> trace.sqlite, events.jsonl
                                             --oracle.event_budget--> the true budget
"""
