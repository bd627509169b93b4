raise ValueError("failure!")
