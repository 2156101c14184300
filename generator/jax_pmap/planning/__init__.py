"""Which argument gets which role, and which value needs which collective."""
