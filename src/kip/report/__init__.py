"""Pictures and pages, drawn from what a run has saved."""
