"""What recorded rounds do not tell, drawn from what they do tell: acceptance by depth, request and place.

Imports the record of rounds and nothing else of the package; nothing of tries, stores or replay.
"""
