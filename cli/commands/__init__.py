"""The commands, one file each: what is asked, and how the answer is shown; what they do is in `studies`."""
