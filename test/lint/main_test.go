package main

import (
	"testing"

	"golang.org/x/tools/go/analysis"
)

func TestAnalyzersAreValid(t *testing.T) {
	all, err := analyzers()
	if err != nil {
		t.Fatal(err)
	}
	if err := analysis.Validate(all); err != nil {
		t.Fatal(err)
	}
	if want := 100; len(all) < want {
		t.Errorf("%d analyzers, want at least %d: a suite is missing", len(all), want)
	}
}
