package adapters

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"testing/iotest"
)

// sample is a whole file of a kind, made by the real program where there is one.
type sample struct {
	name string
	w    want
	text []byte
	// cutOK says which proper prefixes section 5 lets pass.
	cutOK func(prefix []byte) bool
}

func never([]byte) bool { return false }

func samples(t *testing.T) []sample {
	t.Helper()
	y := newRig(t, "test/corpus/counter", nil)
	y.call(tool(t, "yosys_synth"), `{"sources":["rtl/counter.v","rtl/top.v"],"include_dirs":["inc"],"top":"top","netlist":"t.json","verilog":"t.v","flatten":false,"stat":"s.txt"}`)
	v := newRig(t, "test/corpus/fsm", nil)
	v.call(tool(t, "iverilog_simulate"), `{"sources":["fsm.v","tb.v"],"top":"tb","wave":"t.vcd"}`)
	read := func(r *rig, name string) []byte {
		text, err := os.ReadFile(filepath.Join(r.job, name))
		if err != nil || len(text) == 0 {
			t.Fatalf("%s: %v\n%s", name, err, r.log())
		}
		return text
	}
	atLineEnd := func(p []byte) bool {
		return bytes.Contains(p, []byte("$enddefinitions")) && bytes.HasSuffix(p, []byte("\n"))
	}
	blankTail := func(whole []byte) func([]byte) bool {
		return func(p []byte) bool { return len(p) >= len(bytes.TrimSpace(whole)) }
	}
	js := []byte(`{"a": [1, -2.5e+3, {"b": "x\u00e9\n"}, true, false, null], "c": {}}` + "\n")
	netlist, verilog := read(y, "s0/out.json"), read(y, "s1/out.v")
	return []sample{
		{"json", want{kind: KindJSON}, js, blankTail(js)},
		{"yosys_json", want{kind: KindYosysJSON, mustContain: "top"}, netlist, blankTail(netlist)},
		{"verilog", want{kind: KindVerilog, mustContain: "top"}, verilog, never},
		{"text", want{kind: KindText, mustContain: "Number of cells"}, read(y, "s2/out.txt"), func(p []byte) bool {
			return bytes.HasSuffix(p, []byte("\n")) && bytes.Contains(p, []byte("Number of cells"))
		}},
		{"vvp", want{kind: KindVVP}, read(v, "work/_sim.vvp"), never},
		{"vcd", want{kind: KindVCD}, read(v, "s0/out.vcd"), atLineEnd},
	}
}

// validate runs a kind's validator on bytes, in blocks of one byte if small.
func validate(w want, text []byte, small bool) error {
	if !small {
		return checkFile(fstest.MapFS{"out": {Data: text}}, "out", w)
	}
	spec, _ := kindOf(w.kind)
	s := newSource(iotest.OneByteReader(bytes.NewReader(text)))
	if err := spec.check(s, w); err != nil {
		return err
	}
	if _, err := s.ReadByte(); err == nil {
		return notWhole("more")
	}
	return s.below.err
}

// cuts returns the lengths to cut at: all up to 8 KiB, then steps.
func cuts(n int) (at []int) {
	for i := 1; i < n; i++ {
		if i > 8<<10 && i%997 != 0 && n-i > 300 {
			continue
		}
		at = append(at, i)
	}
	return at
}

// brokenPrefixes returns the prefixes that check accepts and may not, at most five.
func brokenPrefixes(s sample, check func(want, []byte) error) (bad []int) {
	for _, n := range cuts(len(s.text)) {
		if err := check(s.w, s.text[:n]); err == nil && !s.cutOK(s.text[:n]) && len(bad) < 5 {
			bad = append(bad, n)
		}
	}
	return bad
}

func TestValidators(t *testing.T) {
	whole := func(w want, text []byte) error { return validate(w, text, false) }
	for _, s := range samples(t) {
		t.Run(s.name, func(t *testing.T) {
			for _, small := range []bool{false, true} {
				if err := validate(s.w, s.text, small); err != nil {
					t.Fatalf("whole file, small blocks %v: %v", small, err)
				}
			}
			if bad := brokenPrefixes(s, whole); bad != nil {
				t.Errorf("accepted prefixes of lengths %v of %d", bad, len(s.text))
			}
			// The control: a validator that says nothing must be caught.
			if bad := brokenPrefixes(s, func(want, []byte) error { return nil }); bad == nil {
				t.Error("the prefix test cannot fail")
			}
			zeroTail := append(bytes.Clone(s.text[:len(s.text)/2]), make([]byte, len(s.text)-len(s.text)/2)...)
			if err := whole(s.w, zeroTail); !errors.Is(err, ErrNotWhole) {
				t.Errorf("zero-filled tail: got %v, want %v", err, ErrNotWhole)
			}
			if err := whole(s.w, append(bytes.Clone(s.text), 0)); !errors.Is(err, ErrNotWhole) {
				t.Errorf("a zero byte after the end: got %v, want %v", err, ErrNotWhole)
			}
			random := rand.New(rand.NewPCG(1, 2))
			for range 1000 { // no panic, and the same answer whatever the blocks are
				flipped := bytes.Clone(s.text[:min(len(s.text), 20<<10)])
				flipped[random.IntN(len(flipped))] ^= byte(1 + random.IntN(255))
				big, little := validate(s.w, flipped, false), validate(s.w, flipped, true)
				if fmt.Sprint(big) != fmt.Sprint(little) {
					t.Fatalf("blocks change the answer: %v, %v", big, little)
				}
			}
		})
	}
}

func TestCheckFile(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	fsys := fstest.MapFS{"d/x": file("x"), "empty": file(""), "x.json": file("{}"), "link": {Mode: os.ModeSymlink, Data: []byte("d/x")}}
	for _, c := range []struct {
		name, file string
		w          want
		want       error
	}{
		{"missing", "none", want{kind: KindFile}, ErrMissing},
		{"directory", "d", want{kind: KindFile}, ErrNotWhole},
		{"symlink", "link", want{kind: KindFile}, ErrNotWhole},
		{"empty", "empty", want{kind: KindFile}, ErrNotWhole},
		{"empty-allowed", "empty", want{kind: KindFile, allowEmpty: true}, nil},
		{"file", "d/x", want{kind: KindFile}, nil},
		{"no-such-kind", "d/x", want{kind: "nothing"}, ErrNotWhole},
		{"empty-object", "x.json", want{kind: KindJSON}, ErrNotWhole},
	} {
		if err := checkFile(fsys, c.file, c.w); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
}

func TestValidatorsByHand(t *testing.T) {
	deep := strings.Repeat("[", 600) + strings.Repeat("]", 600)
	for _, c := range []struct {
		name, text string
		w          want
		ok         bool
	}{
		{"json-two-values", `{"a":1} {"b":2}`, want{kind: KindJSON}, false},
		{"json-same-key", `{"a":1,"b":2,"a":3}`, want{kind: KindJSON}, false},
		{"json-same-key-escaped", `{"a":1,"\u0061":3}`, want{kind: KindJSON}, false},
		{"json-same-key-below", `{"a":{"x":1,"x":2}}`, want{kind: KindJSON}, true},
		{"json-scalar", `3`, want{kind: KindJSON}, false},
		{"json-number", `[01]`, want{kind: KindJSON}, false},
		{"json-trailing-comma", `[1,]`, want{kind: KindJSON}, false},
		{"json-control", "[\"\x01\"]", want{kind: KindJSON}, false},
		{"json-escape", `["\q"]`, want{kind: KindJSON}, false},
		{"json-deep", deep, want{kind: KindJSON}, false},
		{"yosys-empty-design", `{"creator":"x","modules":{}}`, want{kind: KindYosysJSON, mustContain: "top"}, false},
		{"yosys-other-top", `{"modules":{"other":{}}}`, want{kind: KindYosysJSON, mustContain: "top"}, false},
		{"yosys-top-elsewhere", `{"modules":{"other":{"top":1}},"x":{"top":2}}`, want{kind: KindYosysJSON, mustContain: "top"}, false},
		{"verilog-comment", "module top; /* endmodule */\n", want{kind: KindVerilog}, false},
		{"verilog-string", "module top; initial $display(\"endmodule\");\n", want{kind: KindVerilog}, false},
		{"verilog-line-comment-last", "module top; endmodule // x\n", want{kind: KindVerilog}, true},
		{"verilog-escaped-name", "module \\endmodule ; endmodule\n", want{kind: KindVerilog}, true},
		{"verilog-other-top", "module other; endmodule\n", want{kind: KindVerilog, mustContain: "top"}, false},
		{"verilog-top-instance", "module other; top u(); endmodule\n", want{kind: KindVerilog, mustContain: "top"}, false},
		{"text-latin1", "caf\xe9\n", want{kind: KindText}, false},
		{"text-without-words", "x\n", want{kind: KindText, mustContain: "create_clock"}, false},
		{"vcd-time-falls", "$enddefinitions $end\n#5\n1!\n#4\n", want{kind: KindVCD}, false},
		{"vcd-half-change", "$enddefinitions $end\n#5\nb01\n", want{kind: KindVCD}, false},
		{"vcd-vector", "$enddefinitions $end\n$dumpvars\nbx !\nr1.5 \"\n$end\n#5\n1!\n", want{kind: KindVCD}, true},
		{"vcd-comment", "$enddefinitions $end\n$comment\nanything\n$end\n#5\n", want{kind: KindVCD}, true},
		{"vvp-more-names", "#! /usr/bin/vvp\n:ivl_version \"11.0\";\n:file_names 1;\n    \"a\";\n    \"b\";\n", want{kind: KindVVP}, false},
	} {
		if err := validate(c.w, []byte(c.text), false); (err == nil) != c.ok {
			t.Errorf("%s: got %v, want ok=%v", c.name, err, c.ok)
		}
	}
}

// TestText finds what must be held also across the border of two blocks.
func TestText(t *testing.T) {
	for pad := 64<<10 - 20; pad < 64<<10+20; pad++ {
		text := strings.Repeat("x", pad) + "create_clock é\n"
		if err := validate(want{kind: KindText, mustContain: "create_clock"}, []byte(text), false); err != nil {
			t.Fatalf("at %d: %v", pad, err)
		}
	}
}

// TestReadError: a file that cannot be read to its end.
func TestReadError(t *testing.T) {
	broken := errors.New("input/output error")
	s := newSource(io.MultiReader(strings.NewReader("{"), iotest.ErrReader(broken)))
	if err := checkAny(s, want{}); err != nil || !errors.Is(s.below.err, broken) {
		t.Errorf("got %v and %v, want the read error to be kept", err, s.below.err)
	}
}

// TestLongToken: a JSON string of 64 MiB is refused in memory that does not grow with it. The control is the decoder without the bound.
func TestLongToken(t *testing.T) {
	const token, limit = 64 << 20, 5 * jsonToken // the decoder doubles its buffer
	long := func() io.Reader {
		return io.MultiReader(strings.NewReader(`["`), &endless{token}, strings.NewReader(`"]`))
	}
	got := allocated(func() {
		if err := checkJSON(newSource(long()), want{}); !errors.Is(err, ErrNotWhole) {
			t.Errorf("got %v, want %v", err, ErrNotWhole)
		}
	})
	control := allocated(func() {
		var v any
		if err := json.NewDecoder(long()).Decode(&v); err != nil {
			t.Error(err)
		}
	})
	if got > limit || control <= limit {
		t.Errorf("%d bytes, want at most %d; without the bound %d", got, limit, control)
	}
}
