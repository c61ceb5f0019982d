package cgroup

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	Child()
	villain()
	os.Exit(m.Run())
}
