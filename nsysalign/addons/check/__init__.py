"""Is what was measured what the program claims?  The checks of `nsysalign check`.

export, log --> Scene --> checks --> Doubt --> terminal, JSON

Every check reads which operations were issued between the two records of an interval, by the calls'
own times: that does not depend on where the interval was placed.
"""
