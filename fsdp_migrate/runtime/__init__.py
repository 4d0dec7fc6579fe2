"""The functions that may be written into a project. They are plain torch, and nothing of ours."""
