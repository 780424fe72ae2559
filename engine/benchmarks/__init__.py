"""What `hip bench` times: the kernels on a GPU, the whole engine on either device."""
