package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// event is one line of go test -json (go doc cmd/test2json; events of a build have no Package: go help buildjson).
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64 // seconds
}

// note matches what a test says of its size: it is shown though the test passes.
var note = regexp.MustCompile(`^(    \S+:\d+: NOTE|MODEL|RIG) `)

// report collects what the streams say. Its count of failures is that of failed tests and of refusals.
type report struct {
	print          func(string)
	packages       map[string]*result // of the stream that is read
	build          string             // its tag, in brackets
	passed, failed int
	refusals       []string
}

// result is what is known of one package.
type result struct {
	state  string            // "" until its last event
	tests  map[string]string // name to run, pass, fail, skip
	output map[string]string // of a test; of the package itself under ""
}

func newReport(print func(string)) *report {
	return &report{print: print}
}

// refuse counts one failure that go test itself may not have seen.
func (r *report) refuse(what, why string) {
	r.failed++
	r.refusals = append(r.refusals, what+r.build+": "+why)
}

// expect begins the stream of a build: it must account for these packages, and for no others.
func (r *report) expect(packages []string, tag string) {
	r.build, r.packages = "", map[string]*result{}
	if tag != "" {
		r.build = " [" + tag + "]"
	}
	for _, name := range packages {
		r.packages[name] = &result{tests: map[string]string{}, output: map[string]string{}}
	}
}

// read consumes one stream to its end, and prints a line for each package that ends.
func (r *report) read(stream io.Reader) error {
	for d := json.NewDecoder(stream); ; {
		var e event
		if err := d.Decode(&e); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("read its events: %w", err)
		}
		if err := r.take(e); err != nil {
			return err
		}
	}
}

func (r *report) take(e event) error {
	if e.Action == "build-output" {
		r.print(e.Output)
	}
	if e.Package == "" { // of a build; the package whose test needs it fails, too
		return nil
	}
	p := r.packages[e.Package]
	if p == nil {
		return fmt.Errorf("%s is in the stream, and was not asked for", e.Package)
	}
	switch e.Action {
	case "output":
		p.output[e.Test] += e.Output
		if note.MatchString(e.Output) {
			r.print(e.Output)
		}
		if e.Test == "" && strings.Contains(e.Output, "\t(cached)") {
			r.refuse(e.Package, "a cached result: nothing ran")
		}
	case "run":
		p.tests[e.Test] = "run"
	case "pass", "fail", "skip":
		if e.Test == "" {
			p.state = e.Action
			r.finish(e.Package, p, e.Elapsed)
			break
		}
		p.tests[e.Test] = e.Action
		if e.Action == "pass" {
			delete(p.output, e.Test)
		}
	}
	return nil
}

// finish judges a package at its last event.
func (r *report) finish(name string, p *result, seconds float64) {
	refused := len(r.refusals)
	passed, failed := 0, 0
	for _, test := range slices.Sorted(maps.Keys(p.tests)) {
		switch p.tests[test] {
		case "pass":
			passed++
		case "fail":
			failed++
			r.print(p.output[test])
		case "skip":
			r.refuse(name, test+" was skipped:\n"+p.output[test])
		default:
			r.refuse(name, test+" did not end:\n"+p.output[test])
		}
	}
	r.passed, r.failed = r.passed+passed, r.failed+failed
	if p.state == "skip" || len(p.tests) == 0 && p.state == "pass" {
		r.refuse(name, "no test ran")
	}
	word := "ok  "
	if p.state != "pass" || failed > 0 || len(r.refusals) > refused {
		word = "FAIL"
		r.print(p.output[""])
	}
	if p.state == "fail" && failed == 0 && len(r.refusals) == refused {
		r.refuse(name, "failed outside its tests (build, vet, panic, race or exit status)")
	}
	r.print(fmt.Sprintf("%s %s%s  %d passed, %d failed  %.1fs\n", word, name, r.build, passed, failed, seconds))
}

// settle closes one batch: every package has ended, and go test's own status agrees with what was seen.
func (r *report) settle(streamErr, exitErr error) {
	if streamErr != nil {
		r.refuse("go test", streamErr.Error())
	}
	for _, name := range slices.Sorted(maps.Keys(r.packages)) {
		if p := r.packages[name]; p.state == "" {
			r.refuse(name, "the stream ended without its result")
			r.print(p.output[""])
		}
	}
	if exitErr != nil && r.failed == 0 {
		r.refuse("go test", fmt.Sprintf("ended with %v, and no event says why", exitErr))
	}
}

// close prints the refusals and the tally, and says whether everything passed. Nothing at all is a refusal, too.
func (r *report) close() bool {
	if r.passed == 0 && r.failed == 0 {
		r.refuse("runner", "no test ran at all")
	}
	for _, why := range r.refusals {
		r.print("refused: " + strings.TrimSpace(why) + "\n")
	}
	r.print(fmt.Sprintf("%d passed, %d failed\n", r.passed, r.failed))
	return r.failed == 0
}
