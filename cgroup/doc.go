// Package cgroup runs one program in a cgroup v2 of its own and proves when nothing of it is left.
package cgroup
