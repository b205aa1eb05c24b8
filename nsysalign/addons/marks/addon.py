"""What this add-on adds."""

from nsysalign.registry import AddOn, Section

ADDON = AddOn(
    options={"run": "command:run_option", "analyze": "command:analyze_option"},
    reruns={"marks": "command:RERUN"},
    files=("marks", "marked"),
    beside=("marks-*.nsam", "marked/marks-*.nsam"),
    tables="tables:MARKS_SPECS",
    long=("marks",),
    step="results:step",
    rules="rules:RULES",
    sections=(Section("inside.html", "inside.js", "inside", "page:inside"),),
)
