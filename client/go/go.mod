module fencepost

go 1.19
