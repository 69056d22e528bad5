"""A capture that captures nothing: it calls what it was given, counts, and looks where the buffers are."""

from paceline.runtime.static_memory import CalledEachTime


class Counting(CalledEachTime):
    """Attributes: captures and replays so far."""

    def __init__(self):
        self.captures = self.replays = 0

    def capture(self, run):
        self.captures += 1
        run()  # as a capture warms up

        def replay():
            self.replays += 1
            return run()

        return replay


class Refusing(CalledEachTime):
    def capture(self, run):
        raise RuntimeError("operation not permitted when stream is capturing\nwith details")
