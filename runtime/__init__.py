"""The world of real models: pools, recording, decoding (torch and transformers).

Never imports the simulator; needs the extra `paceline[runtime]`.
"""
