"""Speed, side by side: ours against other libraries, in one process, on this machine.

``python -m bench`` (or ``make bench``) prints one table per job. All systems of a table hold the
same weights and get the same input. They take turns, A B C then C B A, so that a busy moment hits
all of them alike; what counts is the median over the rounds of the ratio of two times of one
round. Beside it stands the share of what this machine can do at all: its rate of matrix products
where a job computes, its memory bandwidth where it reads weights.
"""
