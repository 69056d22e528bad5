"""Running servers: drive one and write down what is seen; replay what was seen, fit its seconds, and judge them."""
