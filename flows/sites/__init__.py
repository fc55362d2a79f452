"""Joint releases over several datasets in one home folder, or over the remote sites that a roster file lists."""
