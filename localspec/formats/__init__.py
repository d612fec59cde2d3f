"""Reading and writing what model files hold."""
