//go:build !edamodel

package codec

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// open returns a gate for messages of so many bytes.
func open(in, out int64) *Gate {
	g := &Gate{}
	g.Enter(&Bounds{Tool, in, out})
	return g
}

// frames reads r to its end.
func frames(r io.Reader, g *Gate) (all []Frame, end error) {
	d := NewDecoder(r, g)
	for {
		f, err := d.Next()
		if err != nil {
			_, again := d.Next()
			if again.Error() != err.Error() {
				return all, fmt.Errorf("the input ended twice: %w, %w", err, again)
			}
			return all, err
		}
		all = append(all, f)
	}
}

// show renders frames for comparison.
func show(all []Frame) string {
	var b strings.Builder
	for _, f := range all {
		switch f := f.(type) {
		case Raw:
			fmt.Fprintf(&b, "raw %s;", f)
		case *TooLarge:
			fmt.Fprintf(&b, "large %d %s;", f.Size, f.ID)
		case *Malformed:
			b.WriteString("bad;")
		}
	}
	return b.String()
}

func TestDecoder(t *testing.T) {
	deep := func(n int) string { return `{"a":` + strings.Repeat("[", n-1) + strings.Repeat("]", n-1) + "}" }
	pad := strings.Repeat(" ", 1000)
	id := `"` + strings.Repeat("i", maxIDBytes-2) + `"`
	for _, c := range []struct{ name, input, want string }{
		{"nothing", "", ""},
		{"two", "{\"a\":1}\n{}\n", `raw {"a":1};raw {};`},
		{"crlf_and_empty_lines", "\n\r\n{}\r\n \t\r\n\n {} \r\n", "raw {};raw {};"},
		{"malformed", "{\n{}\nx\n", "bad;raw {};bad;"},
		{"two_on_a_line", "{}{}\n{}\n", "bad;raw {};"},
		{"not_utf8", "{\"a\":\"\xff\"}\n{}\n", "bad;raw {};"},
		{"batch", `[{"id":1}]` + "\n{}\n", "bad;raw {};"},
		{"twice", `{"a":{"b":1,"\u0062":2}}` + "\n", "bad;"},
		{"ids", `{"id":-9007199254740991}` + "\n" + `{"id":"1.5"}` + "\n" + `{"a":{"id":1.5}}` + "\n", `raw {"id":-9007199254740991};raw {"id":"1.5"};raw {"a":{"id":1.5}};`},
		{"id_fraction", `{"id":1.5}` + "\n{}\n", "bad;raw {};"},
		{"id_huge", `{"id":9007199254740993}` + "\n" + `{"\u0069d":1e400}` + "\n" + `{"id":` + strings.Repeat("1", 200) + "}\n", "bad;bad;bad;"},
		{"case", `{"id":1,"ID":2}` + "\n", `raw {"id":1,"ID":2};`},
		{"as_deep_as_allowed", deep(64) + "\n", "raw " + deep(64) + ";"},
		{"deep", deep(65) + "\n{}\n", "bad;raw {};"},
		{"very_deep", deep(10_000) + "\n{}\n", "large 20004 ;raw {};"},
		{"id_first", `{"id":1,"a":"` + pad + "\"}\n{}\n", "large 1015 1;raw {};"},
		{"id_last", `{"a":"` + pad + `","id":"x"}` + "\n", `large 1017 "x";`},
		{"id_behind_braces", `{"a":"}]{\"\\","b":{"id":1},"c":[{"id":2}],"id" : -1.5e3 ,"d":"` + pad + "\"}\n", "large 1065 -1.5e3;"},
		{"id_escaped", `{"` + `\u0069d":"\"}{\\","a":"` + pad + "\"}\n", `large 1027 "\"}{\\";`},
		{"id_alone", `{` + pad + `"id"` + pad + `:` + pad + `1` + pad + "}\n", "large 4008 1;"},
		{"id_as_long_as_allowed", `{"id":` + id + ` ,"a":"` + pad + "\"}\n", "large 1143 " + id + ";"},
		{"id_too_long", `{"id":"i` + id[1:] + `,"a":"` + pad + "\"}\n", "large 1143 ;"},
		{"id_below", `{"a":{"id":1},"b":"` + pad + "\"}\n", "large 1021 ;"},
		{"id_twice", `{"id":1,"id":1,"a":"` + pad + "\"}\n", "large 1022 ;"},
		{"id_null", `{"id":null,"a":"` + pad + "\"}\n", "large 1018 ;"},
		{"id_object", `{"id":{"a":1},"a":"` + pad + "\"}\n", "large 1021 ;"},
		{"id_two_numbers", `{"id":1 2,"a":"` + pad + "\"}\n", "large 1017 ;"},
		{"id_not_utf8", "{\"id\":\"\xff\",\"a\":\"" + pad + "\"}\n", "large 1017 ;"},
		{"id_of_a_value", `{"a":"id","b":5,"c":"` + pad + "\"}\n", "large 1023 ;"},
		{"id_in_a_batch", `[{"id":1,"a":"` + pad + "\"}]\n", "large 1017 ;"},
		{"id_of_two_messages", `{"id":1}{"a":"` + pad + "\"}\n", "large 1016 ;"},
		{"id_without_end", `{"id":1,"a":"` + pad + "\"\n", "large 1014 ;"},
		{"blank", pad + pad + "\n{}\n", "large 2000 ;raw {};"},
	} {
		if got, err := frames(strings.NewReader(c.input), open(1000, 0)); show(got) != c.want || !errors.Is(err, io.EOF) {
			t.Errorf("%s: got %s, %v, want %s", c.name, show(got), err, c.want)
		}
	}
	if got, err := frames(strings.NewReader(deep(10_000)+"\n{}\n"), open(1<<20, 0)); show(got) != "bad;raw {};" || !errors.Is(err, io.EOF) {
		t.Errorf("depth 10,000 within the bound: got %s, %v", show(got), err)
	}
}

// TestEnd: what is no whole message is none, and says so.
func TestEnd(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name  string
		input io.Reader
		want  error
	}{
		{"between", strings.NewReader("{}\n"), io.EOF},
		{"within", strings.NewReader("{}\n{}"), io.ErrUnexpectedEOF},
		{"within_too_large", strings.NewReader("{}\n" + call(5000)[:4000]), io.ErrUnexpectedEOF},
		{"broken", io.MultiReader(strings.NewReader("{}\n{"), ioFunc(func([]byte) (int, error) { return 0, broken })), broken},
	} {
		if got, err := frames(c.input, open(1000, 0)); show(got) != "raw {};" || !errors.Is(err, c.want) {
			t.Errorf("%s: got %s, %v, want %v", c.name, show(got), err, c.want)
		}
	}
	if got, err := frames(strings.NewReader("{}\n"), &Gate{}); show(got) != "large 2 ;" || !errors.Is(err, io.EOF) {
		t.Errorf("a gate that nobody entered: got %s, %v", show(got), err)
	}
}

// TestConstantMemory: neither a large message nor one without end is kept, and the latter ends the input.
func TestConstantMemory(t *testing.T) {
	const tail = "\",\"id\":3}\n{}\n"
	for _, c := range []struct {
		name string
		size int64
		want string
		end  error
	}{
		{"skipped", 60 << 20, fmt.Sprintf("large %d 3;raw {};", 60<<20+len(`{"a":"`)+len(`","id":3}`)), io.EOF},
		{"endless", 1 << 30, "", io.ErrUnexpectedEOF},
	} {
		var read int64
		filler := ioFunc(func(p []byte) (int, error) {
			for i := range p {
				p[i] = '{'
			}
			read += int64(len(p))
			return len(p), nil
		})
		input := io.MultiReader(strings.NewReader(`{"a":"`), io.LimitReader(filler, c.size), strings.NewReader(tail))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := frames(input, open(64<<10, 0))
		runtime.ReadMemStats(&after)
		if show(got) != c.want || !errors.Is(err, c.end) {
			t.Errorf("%s: got %s, %v, want %s, %v", c.name, show(got), err, c.want, c.end)
		}
		if bytes := after.TotalAlloc - before.TotalAlloc; bytes > 512<<10 {
			t.Errorf("%s: %d bytes allocated in all", c.name, bytes)
		}
		if read > maxBytes+readBytes {
			t.Errorf("%s: %d bytes read", c.name, read)
		}
	}
}

// TestPartial: a reader can tell whether it is asked for the rest of a message.
func TestPartial(t *testing.T) {
	chunks := []string{`{"a`, `":1}`, "\n{}\n", `{`, `}` + "\n{", "}\n", "\n"}
	want := []bool{false, true, true, false, true, true, false, false}
	var d *Decoder
	var got []bool
	d = NewDecoder(ioFunc(func(p []byte) (int, error) {
		got = append(got, d.Partial())
		if len(chunks) == 0 {
			return 0, io.EOF
		}
		n := copy(p, chunks[0])
		chunks = chunks[1:]
		return n, nil
	}), open(100, 0))
	for range 4 {
		if _, err := d.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Next(); !errors.Is(err, io.EOF) || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	var asked []bool // also of a message larger than the buffer
	input := strings.NewReader(call(3 * readBytes))
	d = NewDecoder(ioFunc(func(p []byte) (int, error) {
		asked = append(asked, d.Partial())
		return input.Read(p)
	}), open(100, 0))
	if _, err := d.Next(); err != nil || slices.Index(asked, true) != 1 || slices.Contains(asked[1:], false) {
		t.Errorf("got %v, %v", asked, err)
	}
}

func TestAnswers(t *testing.T) {
	large := TooLarge{ID: json.RawMessage(`"a\u003c"`), Size: 3145728, Bounds: Bounds{Tool, 1048576, 262144}}
	ours := large
	ours.ID, ours.Out = nil, true
	for name, c := range map[string]struct {
		answer []byte
		want   string
	}{
		"in": {large.Answer(), `{"jsonrpc":"2.0","id":"a\u003c","error":{"code":-32600,"message":"message of 3145728 bytes is over the limit of 1048576",` +
			`"data":{"limit_bytes":1048576,"phase":"tool","size_bytes":3145728}}}`},
		"out": {ours.Answer(), `{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"message of 3145728 bytes is over the limit of 262144",` +
			`"data":{"limit_bytes":262144,"phase":"tool","size_bytes":3145728}}}`},
		"malformed": {Check([]byte(`{"a":1,"a":2}`)).Answer(), `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"malformed message: two members \"a\""}}`},
		"batch":     {Check([]byte(` [{"id":1}]`)).Answer(), `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"malformed message: not a JSON object (batches are refused)"}}`},
		"id":        {Check([]byte(`{"id":0.5}`)).Answer(), `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"malformed message: the id is neither a string nor an integer between -2^53 and 2^53"}}`},
	} {
		if string(c.answer) != c.want {
			t.Errorf("%s: got %s, want %s", name, c.answer, c.want)
		}
	}
	if got := Check([]byte(`{"` + call(5000)[20:4000] + `":1,"` + call(5000)[20:4000] + `":1}`)).Answer(); len(got) > 400 {
		t.Errorf("an answer of %d bytes quotes what was sent: %s", len(got), got)
	}
	for _, scalar := range []string{`1`, `"a"`, `null`, ``} {
		if Check([]byte(scalar)) == nil {
			t.Errorf("%q is a message", scalar)
		}
	}
}

func TestEncoder(t *testing.T) {
	var out bytes.Buffer
	e := NewEncoder(&out, open(0, 300))
	var large *TooLarge
	for _, c := range []struct {
		name, message, want string
		large               bool
	}{
		{"whole", `{"id":1}`, `{"id":1}`, false},
		{"newlines", "{\n\"id\":1\n}", `{ "id":1 }`, false},
		{"too_large", strings.TrimSpace(call(301)), string((&TooLarge{json.RawMessage("7"), 301, Bounds{Tool, 0, 300}, true}).Answer()), true},
		{"too_large_without_id", `{"a":"` + strings.Repeat("x", 300) + `"}`, "", true},
	} {
		out.Reset()
		err := e.Write([]byte(c.message))
		if errors.As(err, &large) != c.large || !c.large && err != nil || strings.TrimSuffix(out.String(), "\n") != c.want {
			t.Errorf("%s: wrote %q, %v, want %q", c.name, out.String(), err, c.want)
		}
	}
	broken := errors.New("broken")
	writes := 0
	e = NewEncoder(ioFunc(func(p []byte) (int, error) { writes++; return len(p) / 2, broken }), open(0, 300))
	for range 2 {
		if err := e.Write([]byte(`{}`)); !errors.Is(err, broken) {
			t.Errorf("got %v, want %v", err, broken)
		}
	}
	if writes != 1 {
		t.Error("wrote on in the midst of a message")
	}
}

// TestWritersTakeTurns: each message goes out whole, whoever writes at the same time.
func TestWritersTakeTurns(t *testing.T) {
	r, w := io.Pipe()
	g := open(1000, 1000)
	e := NewEncoder(w, g)
	const writers, each = 4, 200
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			for range each {
				if err := e.Write([]byte(strings.TrimSpace(call(100 + i)))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	go func() { all.Wait(); w.CloseWithError(io.EOF) }()
	got, err := frames(r, g)
	sizes := map[int]int{}
	for _, f := range got {
		raw, _ := f.(Raw)
		sizes[len(raw)]++
	}
	for i := range writers {
		if sizes[100+i] != each || len(got) != writers*each || !errors.Is(err, io.EOF) {
			t.Errorf("got %v, %v", sizes, err)
		}
	}
}

// plainID is the oracle for ids: what encoding/json makes of a message that Check accepts.
func plainID(message []byte) json.RawMessage {
	var members map[string]json.RawMessage
	if json.Unmarshal(message, &members) != nil {
		return nil
	}
	id := members["id"]
	var number json.Number // from a string, too, but then of digits
	var text string
	if len(id) > maxIDBytes || bytes.Equal(id, []byte("null")) || json.Unmarshal(id, &number) != nil && json.Unmarshal(id, &text) != nil {
		return nil
	}
	return id
}

// FuzzFrame: each line is what a reader of whole lines takes it for; however the input is cut into reads, the frames and
// ids are the same and no more than the bound is kept; and what is accepted survives the encoder.
func FuzzFrame(f *testing.F) {
	pad := strings.Repeat("x", 200)
	f.Add([]byte("{\"id\":1}\r\n\n[]\n{\"a\":\"}\\\"\",\"\\u0069d\":\"x\"}\n{"), uint8(0), uint8(0), uint16(20))
	f.Add([]byte(`{"params":{"id":[2,{}]},"a":"`+pad+`","id": -3 }`+"\n{}\n"), uint8(2), uint8(20), uint16(40))
	f.Add([]byte(`{"id":1}{"a":"`+pad+`"}`+"\n[{\"id\":5}]\n"), uint8(255), uint8(100), uint16(5))
	f.Add([]byte("{\"a\":{\"b\":1,\"b\":2}}\n{\"a\":\"\xff\"}\n \t\n{}"), uint8(6), uint8(16), uint16(100))
	f.Fuzz(func(t *testing.T, input []byte, chunk, buffer uint8, in uint16) {
		g := open(int64(in), 1<<20)
		whole, end := frames(bytes.NewReader(input), g)
		lines := bytes.Split(input, []byte("\n"))
		if cut := len(lines[len(lines)-1]) > 0; errors.Is(end, io.ErrUnexpectedEOF) != cut || !cut && !errors.Is(end, io.EOF) {
			t.Fatalf("ended with %v", end)
		}
		var want []Frame
		for _, line := range lines[:len(lines)-1] {
			message := bytes.Trim(line, " \t\r")
			bad := Check(message)
			switch {
			case len(line) > int(in) && bad == nil:
				want = append(want, &TooLarge{ID: plainID(message), Size: int64(len(line))})
			case len(line) > int(in): // may have an id, nobody knows which
				large := &TooLarge{Size: int64(len(line))}
				if i := len(want); i < len(whole) {
					if got, ok := whole[i].(*TooLarge); ok && len(got.ID) <= maxIDBytes && (got.ID == nil || json.Valid(got.ID)) {
						large.ID = got.ID
					}
				}
				want = append(want, large)
			case len(message) == 0:
			case bad != nil:
				want = append(want, bad)
			default:
				want = append(want, Raw(message))
			}
		}
		if show(whole) != show(want) {
			t.Fatalf("got  %s\nwant %s", show(whole), show(want))
		}

		d := NewDecoder(nil, g)
		rest := input
		d.r = bufio.NewReaderSize(ioFunc(func(p []byte) (int, error) {
			if len(d.kept) > int(in) || cap(d.kept) > 2*int(in)+64 {
				t.Fatalf("%d bytes kept in %d, bound %d", len(d.kept), cap(d.kept), in)
			}
			if len(rest) == 0 {
				return 0, io.EOF
			}
			n := copy(p[:min(len(p), int(chunk)+1)], rest)
			rest = rest[n:]
			return n, nil
		}), int(buffer))
		var got, accepted []Frame
		out := &bytes.Buffer{}
		e := NewEncoder(out, g)
		frame, err := d.Next()
		for ; err == nil; frame, err = d.Next() {
			got = append(got, frame)
			if raw, ok := frame.(Raw); ok {
				accepted = append(accepted, raw)
				if err := e.Write(raw); err != nil {
					t.Fatal(err)
				}
			}
		}
		if show(got) != show(whole) || err.Error() != end.Error() {
			t.Fatalf("in chunks %s, %v\nat once   %s, %v", show(got), err, show(whole), end)
		}
		if again, err := frames(out, g); !errors.Is(err, io.EOF) || show(again) != show(accepted) {
			t.Fatalf("encoded %s as %s, %v", show(accepted), show(again), err)
		}
	})
}
