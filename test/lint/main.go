// Command houselint is the vet tool of this repository: go vet -vettool=houselint ./...
//
// It is a vet tool, not a command of its own, so that it shares the build cache, sees test files, and treats an unknown
// pattern as an error. There is no way to switch off a finding: what is wrong about a rule is changed here, for all.
package main

import (
	"fmt"
	"os"

	"github.com/charithe/durationcheck"
	"github.com/kisielk/errcheck/errcheck"
	"github.com/nishanths/exhaustive/passes/exhaustive"
	"github.com/polyfloyd/go-errorlint/errorlint"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/nilness"
	"golang.org/x/tools/go/analysis/passes/unusedwrite"
	"golang.org/x/tools/go/analysis/unitchecker"
	"honnef.co/go/tools/analysis/lint"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"

	"github.com/eda-sidecar/eda-sidecar/test/lint/blankerr"
	"github.com/eda-sidecar/eda-sidecar/test/lint/rawduration"
)

func main() {
	analyzers, err := analyzers()
	if err != nil {
		fmt.Fprintln(os.Stderr, "houselint:", err)
		os.Exit(2)
	}
	unitchecker.Main(analyzers...)
}

// analyzers returns every analyzer with the settings of the house. Flags of the third-party ones are set here, so that no
// caller can forget them.
func analyzers() ([]*analysis.Analyzer, error) {
	errorsAs := errorlint.NewAnalyzer()
	all := []*analysis.Analyzer{
		blankerr.Analyzer, durationcheck.Analyzer, errcheck.Analyzer, errorsAs, exhaustive.Analyzer,
		nilness.Analyzer, rawduration.Analyzer, unusedwrite.Analyzer,
	}
	for _, suite := range [][]*lint.Analyzer{staticcheck.Analyzers, simple.Analyzers} {
		for _, a := range suite {
			if !a.Doc.NonDefault {
				all = append(all, a.Analyzer)
			}
		}
	}
	if err := errorsAs.Flags.Set("errorf", "true"); err != nil {
		return nil, fmt.Errorf("errorlint: %w", err)
	}
	// A default clause is no excuse: default-signifies-exhaustive stays false.
	if err := exhaustive.Analyzer.Flags.Set("check", "switch,mapliteral"); err != nil {
		return nil, fmt.Errorf("exhaustive: %w", err)
	}
	return all, nil
}
