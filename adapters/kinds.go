package adapters

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"text/scanner"
	"unicode/utf8"
)

// Kind is what an output or a product must be to be whole.
type Kind string

// The kinds. A validator reads to the last byte, streaming, and accepts no prefix of a whole file but those named here.
const (
	KindFile      Kind = "file"       // any bytes
	KindText      Kind = "text"       // UTF-8 without NUL, last byte newline; a cut at a line end is seen only by must_contain
	KindJSON      Kind = "json"       // exactly one object or array, not empty, no key of the outermost object twice
	KindYosysJSON Kind = "yosys_json" // json; modules is not empty and holds the requested top
	KindVerilog   Kind = "verilog"    // balanced module and endmodule, the last token endmodule; a cut between two modules is seen only by the requested top
	KindVVP       Kind = "vvp"        // the file table, which comes last, is complete
	KindVCD       Kind = "vcd"        // whole value changes, times that do not fall; VCD has no trailer: a cut at a line end goes unseen
)

// kindSpec is one row of the table of kinds.
type kindSpec struct {
	ext   []string // allowed extensions of a target; nil: any
	check func(*source, want) error
}

// want is what the validator of one file is to find.
type want struct {
	kind        Kind
	mustContain string
	allowEmpty  bool
}

// kindOf looks a kind up in the table of kinds.
func kindOf(k Kind) (spec kindSpec, ok bool) {
	spec, ok = map[Kind]kindSpec{
		KindFile:      {nil, checkAny},
		KindText:      {nil, checkText},
		KindJSON:      {[]string{".json"}, checkJSON},
		KindYosysJSON: {[]string{".json"}, checkYosysJSON},
		KindVerilog:   {[]string{".v", ".sv", ".vh"}, checkVerilog},
		KindVVP:       {[]string{".vvp"}, checkVVP},
		KindVCD:       {[]string{".vcd"}, checkVCD},
	}[k]
	return spec, ok
}

// Exts are the extensions that a target of the kind may have, with the dot; nil: any.
func (k Kind) Exts() []string { spec, _ := kindOf(k); return spec.ext }

// Known reports whether the kind has a validator.
func (k Kind) Known() bool { _, ok := kindOf(k); return ok }

// checkFile validates one file. name is relative to staged, slash-separated. A missing file is ErrMissing, any other fault ErrNotWhole.
func checkFile(staged fs.FS, name string, w want) error {
	info, err := fs.Lstat(staged, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ErrMissing
	case errors.Is(err, fs.ErrInvalid): // a link, or what would block
		return notWhole("not a regular file")
	case err != nil:
		return bare(err)
	case !info.Mode().IsRegular():
		return notWhole("not a regular file")
	case info.Size() == 0 && !w.allowEmpty:
		return notWhole("empty")
	case info.Size() == 0:
		return nil
	}
	spec, ok := kindOf(w.kind)
	if !ok {
		return notWhole("kind %q has no validator", string(w.kind))
	}
	f, err := staged.Open(name)
	if err != nil {
		return bare(err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	s := newSource(f)
	err = spec.check(s, w)
	if s.below.err != nil {
		return bare(s.below.err) // what the validator made of half the file is no news
	}
	return err
}

// bare takes the path off an error: it names a slot.
func bare(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// maxLine is how much of a line is kept, in bytes; the rest is read and dropped.
const maxLine = 64 << 10

// source is what a validator reads, with one block of memory. A read error ends it like EOF and stays in below.
type source struct {
	*bufio.Reader
	below  *below
	offset int64 // bytes that line consumed
}

// below is the file under a source.
type below struct {
	r    io.Reader
	last byte  // that was read
	err  error // of reading, other than io.EOF
}

func newSource(r io.Reader) *source {
	b, block := &below{r: r}, int64(maxLine)
	if f, ok := r.(fs.File); ok {
		if info, err := f.Stat(); err == nil { // else reading it says so
			block = min(block, max(info.Size()+1, 4<<10)) // nobody writes any more: no line is longer than the file
		}
	}
	return &source{Reader: bufio.NewReaderSize(b, int(block)), below: b}
}

// Read implements io.Reader.
func (b *below) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if n > 0 {
		b.last = p[n-1]
	}
	if err != nil && !errors.Is(err, io.EOF) {
		b.err, err = err, io.EOF
	}
	return n, err
}

// line returns the next line without its newline, cut to maxLine bytes, and whether the newline was there.
// It returns nil, false at the end. The slice is valid until the next call.
func (s *source) line() (line []byte, whole bool) {
	line, err := s.ReadSlice('\n')
	s.offset += int64(len(line))
	if errors.Is(err, bufio.ErrBufferFull) {
		line = slices.Clone(line)
	}
	for errors.Is(err, bufio.ErrBufferFull) {
		var more []byte
		more, err = s.ReadSlice('\n')
		s.offset += int64(len(more))
	}
	if len(line) == 0 {
		return nil, false
	}
	return bytes.TrimSuffix(line, []byte("\n")), err == nil
}

func checkAny(s *source, _ want) error {
	_, err := io.Copy(io.Discard, s)
	return err
}

func checkText(s *source, w want) error {
	need := []byte(w.mustContain)
	var tail []byte // the last characters, at least as many bytes as need has
	for found := len(need) == 0; ; {
		r, size, err := s.ReadRune()
		switch {
		case err != nil && s.below.last != '\n':
			return notWhole("does not end with a newline")
		case err != nil && !found:
			return notWhole("does not hold %q", w.mustContain)
		case err != nil:
			return nil
		case r == utf8.RuneError && size == 1:
			return notWhole("not UTF-8")
		case r == 0:
			return notWhole("holds a NUL byte")
		case found:
			continue
		}
		tail = utf8.AppendRune(tail, r)
		if found = bytes.HasSuffix(tail, need); len(tail) > 2*len(need)+1<<10 {
			tail = append(tail[:0], tail[len(tail)-len(need):]...)
		}
	}
}

// checkVerilog reads tokens. A word is an identifier, a number, or an escaped identifier up to its blank.
func checkVerilog(s *source, w want) error {
	var lex scanner.Scanner
	var broken string // what the scanner objects to: a comment that does not end, a NUL, bytes that are not UTF-8
	lex.Init(s)
	lex.Error = func(_ *scanner.Scanner, objection string) { broken = objection }
	lex.Mode = scanner.ScanIdents | scanner.ScanComments | scanner.SkipComments
	escaped := false
	lex.IsIdentRune = func(r rune, i int) bool {
		if i == 0 {
			escaped = r == '\\'
		}
		return i < maxLine && (escaped && r > ' ' || r < utf8.RuneSelf && isWord(byte(r)))
	}
	modules, ends, top := 0, 0, w.mustContain == ""
	afterModule, ended := false, false // what the last token was
	for token := lex.Scan(); token != scanner.EOF; token = lex.Scan() {
		named, word := afterModule, lex.TokenText()
		afterModule, ended = false, false
		switch {
		case token == '"':
			if !skipString(&lex) {
				return notWhole("ends inside a string")
			}
		case token >= 0 && token < ' ':
			return notWhole("control byte %#02x", token)
		case word == "module" || word == "macromodule":
			modules, afterModule = modules+1, true
		case word == "endmodule":
			ends, ended = ends+1, true
		case word == w.mustContain:
			top = top || named
		}
		if broken != "" || ends > modules || modules > ends+1 {
			break
		}
	}
	switch {
	case broken != "":
		return notWhole("%s", broken)
	case modules == 0:
		return notWhole("no module")
	case modules != ends || !ended:
		return notWhole("module and endmodule do not match, or it does not end with endmodule")
	case s.below.last != '\n':
		return notWhole("does not end with a newline")
	case !top:
		return notWhole("holds no module %q", w.mustContain)
	}
	return nil
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '$'
}

// skipString skips the rest of a string, and reports whether it ended.
func skipString(lex *scanner.Scanner) bool {
	for r := lex.Next(); r != scanner.EOF; r = lex.Next() {
		switch r {
		case '"':
			return true
		case '\\':
			lex.Next()
		}
	}
	return false
}

func checkVVP(s *source, _ want) error {
	first, whole := s.line()
	if !whole || !bytes.HasPrefix(first, []byte("#!")) || !bytes.HasSuffix(first, []byte("vvp")) {
		return notWhole("its first line is not that of a vvp program")
	}
	version, names := false, -1 // how many file names are to come; -1: before their table
	for {
		line, whole := s.line()
		switch {
		case line == nil && version && names == 0:
			return nil
		case line == nil:
			return notWhole("the table of file names is not complete")
		case !whole:
			return notWhole("ends inside a line")
		case names >= 0:
			quoted := bytes.TrimSpace(line)
			if names--; names < 0 || len(quoted) < 3 || quoted[0] != '"' || !bytes.HasSuffix(quoted, []byte(`";`)) {
				return notWhole("the table of file names is not last")
			}
		case bytes.HasPrefix(line, []byte(":ivl_version ")):
			version = true
		case bytes.HasPrefix(line, []byte(":file_names ")):
			digits, ok := bytes.CutSuffix(line[len(":file_names "):], []byte(";"))
			n, err := strconv.ParseUint(string(digits), 10, 31)
			if names = int(n); !ok || err != nil {
				return notWhole("the table of file names has no length")
			}
		}
	}
}
