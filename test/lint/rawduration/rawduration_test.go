package rawduration_test

import (
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/eda-sidecar/eda-sidecar/test/lint/rawduration"
)

func Test(t *testing.T) { analysistest.Run(t, analysistest.TestData(), rawduration.Analyzer, "a") }
