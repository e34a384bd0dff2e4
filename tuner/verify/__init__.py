"""What a verification is and says: whether what a study promises of a config holds on other traffic.

Shapes, judging and words. What runs is started by `tuner.verify_usecases`.
"""
