"""What makes an answer private: calibration, events, keyed noise and the curator that applies them."""
