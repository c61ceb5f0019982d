package cgroup_test

import (
	"os"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/cgroup/cgrouptest"
)

func TestMain(m *testing.M) {
	cgroup.Prepare(cgrouptest.Invariant)
	os.Exit(m.Run())
}
