package adapters

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"
)

// BenchmarkValidators: the tokens of encoding/json and text/scanner are slower than a parser of our own, 15 to 50 MB/s on a busy machine;
// the longest netlists of the corpora have some MB.
func BenchmarkValidators(b *testing.B) {
	var vcd bytes.Buffer
	vcd.WriteString("$enddefinitions $end\n")
	for i := range 1 << 16 {
		vcd.WriteString("#" + string(rune('1'+i*8/(1<<16))) + "00000000\n1!\n0\"\nb0101010101010101 #\n")
	}
	cell := `"cell$123": {"type": "SB_LUT4", "parameters": {"LUT_INIT": "0110011010011001"}, "connections": {"I0": [ 12, 13 ], "O": [ 1234 ]}},` + "\n"
	netlist := `{"modules": {"top": {"cells": {` + string(bytes.Repeat([]byte(cell), 1<<14)) + `"z": {}}}}}`
	verilog := "module top;\n" + string(bytes.Repeat([]byte("  SB_LUT4 #(.LUT_INIT(16'h6699)) \\u.q[3] (.I0(a), .O(\\n1 [3])); // rtl/top.v:12\n"), 1<<14)) + "endmodule\n"
	for _, c := range []struct {
		name string
		w    want
		text []byte
	}{
		{"vcd", want{kind: KindVCD}, vcd.Bytes()},
		{"yosys_json", want{kind: KindYosysJSON, mustContain: "top"}, []byte(netlist)},
		{"verilog", want{kind: KindVerilog, mustContain: "top"}, []byte(verilog)},
		{"text", want{kind: KindText, mustContain: "endmodule"}, []byte(verilog)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.text)))
			spec, _ := kindOf(c.w.kind)
			for b.Loop() {
				if err := spec.check(newSource(bytes.NewReader(c.text)), c.w); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkParse: floor 200 MB/s, on a log of a design that prints.
func BenchmarkParse(b *testing.B) {
	log := bytes.Repeat([]byte("cycle 000123 state=IDLE addr=0x00001234 data=0xdeadbeef\n"), 1<<16)
	for name, parse := range map[string]func(Run){
		"simulate": func(r Run) { parseSimulate(Args{}, r, nil) },
		"yosys": func(r Run) {
			if _, err := yosysMessages(r); err != nil {
				b.Fatal(err)
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(log)))
			for b.Loop() {
				parse(Run{Exits: []StepExit{{}, {}}, Log: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(log)), nil }})
			}
		})
	}
}

// BenchmarkPlan: ceiling 100 us.
func BenchmarkPlan(b *testing.B) {
	tl := yosysSynth()
	a, err := tl.Decode(map[string]json.RawMessage{"sources": json.RawMessage(`["a.v","b.v"]`), "top": json.RawMessage(`"t"`), "netlist": json.RawMessage(`"t.json"`)})
	if err != nil {
		b.Fatal(err)
	}
	a = bind(a)
	for b.Loop() {
		if _, err := tl.Prepare(a); err != nil {
			b.Fatal(err)
		}
	}
}
