"""Attacks every edge of the product with hostile inputs: nothing but a value or a core error may come out.

`make fuzz` calls `python -m tests.fuzz`. Hypothesis draws the entropy of each input, and a door turns it into an input
(`hostile`) and checks what the product makes of it. Each input has an id, from which it can be made again.

The rule that every door checks: an input ends within a second in a value or in an `AutothrottleError`. A value is
within its declared range and can be sent in our messages. One hostile item of a batch leaves the others as they are.
The types to know are `Door` and `Result` (`series`).
"""
