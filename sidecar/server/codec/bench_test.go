//go:build !edamodel

package codec

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
)

// BenchmarkDecoder is the decoder on messages within the bound and over it, beside what the SDK's own stdio transport
// reads with. That peer only finds the end of a value: it keeps every size, and checks neither names nor UTF-8.
func BenchmarkDecoder(b *testing.B) {
	small := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"yosys_synth","arguments":{"session_id":"default","top":"cpu",` +
		`"sources":["rtl/cpu.v","rtl/alu.v"],"outputs":{"netlist":"build/cpu.json"},"defines":{"WIDTH":"32"},"timeout_s":600}}}` + "\n"
	for _, c := range []struct {
		name, message string
		times         int
	}{
		{"300B", small, 1000},
		{"1MiB", call(1 << 20), 4},
		{"skipped_4MiB", call(4 << 20), 1},
		{"skipped_4MiB_of_members", `{"a":[` + strings.Repeat(small[:len(small)-1]+",", 4<<20/len(small)) + "1]}\n", 1},
	} {
		input := strings.Repeat(c.message, c.times)
		b.Run(c.name+"/codec", func(b *testing.B) {
			b.SetBytes(int64(len(input)))
			for b.Loop() {
				if got, err := frames(strings.NewReader(input), open(1<<20, 0)); len(got) != c.times || !errors.Is(err, io.EOF) {
					b.Fatal(len(got), err)
				}
			}
		})
		b.Run(c.name+"/json.Decoder", func(b *testing.B) {
			b.SetBytes(int64(len(input)))
			for b.Loop() {
				d := json.NewDecoder(strings.NewReader(input))
				for range c.times {
					var raw json.RawMessage
					if err := d.Decode(&raw); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
