package cgroup

func villain() {}
