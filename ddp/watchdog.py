"""placeholder"""
def start(comm): pass
def stop(): pass
