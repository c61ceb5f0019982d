package adapters

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
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
	KindFST       Kind = "fst"        // chain of blocks to the last byte, with geometry and hierarchy, which are written last
	KindWave      Kind = "wave"       // fst or vcd, as its extension says
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
	ext         string
}

// kinds is the table of kinds: no package-level state, so a function.
func kindOf(k Kind) (kindSpec, bool) {
	switch k {
	case KindFile:
		return kindSpec{nil, checkAny}, true
	case KindText:
		return kindSpec{nil, checkText}, true
	case KindJSON:
		return kindSpec{[]string{".json"}, checkJSON}, true
	case KindYosysJSON:
		return kindSpec{[]string{".json"}, checkYosysJSON}, true
	case KindVerilog:
		return kindSpec{[]string{".v", ".sv", ".vh"}, checkVerilog}, true
	case KindVVP:
		return kindSpec{[]string{".vvp"}, checkVVP}, true
	case KindVCD:
		return kindSpec{[]string{".vcd"}, checkVCD}, true
	case KindFST:
		return kindSpec{[]string{".fst"}, checkFST}, true
	case KindWave:
		return kindSpec{[]string{".vcd", ".fst"}, checkWave}, true
	}
	return kindSpec{}, false
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
	w.ext = path.Ext(name)
	s := &source{r: f, buf: make([]byte, 64<<10)}
	err = spec.check(s, w)
	if s.err != nil {
		return bare(s.err) // what the validator made of half the file is no news
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

// source is a byte stream with one block of memory. A read error ends it like EOF and stays in err.
type source struct {
	r      io.Reader
	buf    []byte
	pos, n int
	before int64 // bytes read before buf
	err    error // of reading, other than io.EOF
}

// fill makes at least one byte available at pos, or returns false at the end.
func (s *source) fill() bool {
	for s.pos == s.n {
		n, err := s.r.Read(s.buf)
		s.before += int64(s.n)
		s.pos, s.n = 0, n
		if n == 0 && err != nil {
			if !errors.Is(err, io.EOF) {
				s.err = err
			}
			s.r = eof{}
			return false
		}
	}
	return true
}

// eof reads nothing.
type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

// offset is how many bytes were consumed.
func (s *source) offset() int64 { return s.before + int64(s.pos) }

func (s *source) peek() (byte, bool) {
	if s.pos == s.n && !s.fill() {
		return 0, false
	}
	return s.buf[s.pos], true
}

func (s *source) next() (c byte, ok bool) {
	if s.pos < s.n || s.fill() {
		c, ok = s.buf[s.pos], true
		s.pos++
	}
	return c, ok
}

// maxLine is how much of a line is kept, in bytes; the rest is read and dropped.
const maxLine = 64 << 10

// line returns the next line without its newline, cut to maxLine bytes, and whether the newline was there.
// It returns nil, false at the end. The slice is valid until the next call.
func (s *source) line(carry *[]byte) (line []byte, whole bool) {
	*carry = (*carry)[:0]
	for s.pos < s.n || s.fill() {
		block := s.buf[s.pos:s.n]
		if i := bytes.IndexByte(block, '\n'); i >= 0 {
			s.pos += i + 1
			if len(*carry) == 0 {
				return block[:min(i, maxLine)], true
			}
			*carry = keep(*carry, block[:i])
			return *carry, true
		}
		*carry = keep(*carry, block)
		s.pos = s.n
	}
	if len(*carry) == 0 {
		return nil, false
	}
	return *carry, false
}

// keep appends as much of more as a line may hold.
func keep(line, more []byte) []byte {
	return append(line, more[:min(len(more), maxLine-len(line))]...)
}

func checkAny(s *source, _ want) error {
	for s.fill() {
		s.pos = s.n
	}
	return nil
}

func checkText(s *source, w want) error {
	var tail []byte // the last bytes of the blocks before: an unfinished rune, and what must_contain may begin in
	found, last := w.mustContain == "", byte(0)
	hold := max(len(w.mustContain)-1, 0)
	var rest []byte // an unfinished rune
	for s.fill() {
		block := s.buf[s.pos:s.n]
		s.pos = s.n
		if !found {
			tail = append(tail, block...)
			found = bytes.Contains(tail, []byte(w.mustContain))
			tail = append(tail[:0], tail[max(len(tail)-hold, 0):]...)
		}
		if bytes.IndexByte(block, 0) >= 0 {
			return notWhole("holds a NUL byte")
		}
		last = block[len(block)-1]
		var ok bool
		if rest, ok = validUTF8(append(rest, block...)); !ok {
			return notWhole("not UTF-8")
		}
	}
	switch {
	case len(rest) > 0:
		return notWhole("ends inside a character")
	case last != '\n':
		return notWhole("does not end with a newline")
	case !found:
		return notWhole("does not hold %q", w.mustContain)
	}
	return nil
}

// validUTF8 reports whether b is UTF-8, but for an unfinished rune at its end, which it returns.
func validUTF8(b []byte) (rest []byte, ok bool) {
	cut := len(b)
	for i := 1; i <= min(utf8.UTFMax-1, len(b)); i++ {
		if utf8.RuneStart(b[len(b)-i]) {
			if !utf8.FullRune(b[len(b)-i:]) {
				cut = len(b) - i
			}
			break
		}
	}
	return slices.Clone(b[cut:]), utf8.Valid(b[:cut])
}

func checkVerilog(s *source, w want) error {
	modules, ends, top := 0, 0, w.mustContain == ""
	last, afterModule, ended := byte(0), false, false // the last byte, and what the last token was
	var word []byte
	for c, ok := s.next(); ok; c, ok = s.next() {
		last = c
		word = word[:0]
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			continue
		case c < 0x20:
			return notWhole("control byte %#02x", c)
		case c == '/':
			if skipped, err := skipComment(s); err != nil {
				return err
			} else if skipped {
				last = '\n'
				continue
			}
		case c == '"':
			if !skipString(s) {
				return notWhole("ends inside a string")
			}
		case c == '\\':
			word = takeWord(s, append(word, c), func(c byte) bool { return c > ' ' })
		case isWord(c):
			word = takeWord(s, append(word, c), isWord)
		}
		named := afterModule
		afterModule, ended = false, false
		switch string(word) {
		case "module", "macromodule":
			modules, afterModule = modules+1, true
		case "endmodule":
			ends, ended = ends+1, true
		case w.mustContain:
			top = top || named
		}
		if ends > modules || modules > ends+1 {
			return notWhole("module and endmodule do not match")
		}
	}
	switch {
	case modules == 0:
		return notWhole("no module")
	case modules != ends || !ended:
		return notWhole("does not end with endmodule")
	case last != '\n':
		return notWhole("does not end with a newline")
	case !top:
		return notWhole("holds no module %q", w.mustContain)
	}
	return nil
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '$'
}

// takeWord appends to word while more says so; what is over 1 KiB is dropped.
func takeWord(s *source, word []byte, more func(byte) bool) []byte {
	for s.fill() {
		from := s.pos
		for s.pos < s.n && more(s.buf[s.pos]) {
			s.pos++
		}
		word = append(word, s.buf[from:min(s.pos, from+1024-min(len(word), 1024))]...)
		if s.pos < s.n {
			break
		}
	}
	return word
}

// skipComment skips the comment whose first slash was read, if it is one; a line comment with its newline.
func skipComment(s *source) (bool, error) {
	c, _ := s.peek()
	if c != '/' && c != '*' {
		return false, nil
	}
	for s.pos++; s.fill(); {
		if c == '/' {
			if i := bytes.IndexByte(s.buf[s.pos:s.n], '\n'); i >= 0 {
				s.pos += i + 1
				return true, nil
			}
			s.pos = s.n
		} else if b, _ := s.next(); b == '*' {
			if b, ok := s.peek(); ok && b == '/' {
				s.pos++
				return true, nil
			}
		}
	}
	return false, notWhole("ends inside a comment")
}

func skipString(s *source) bool {
	for {
		switch c, ok := s.next(); {
		case !ok:
			return false
		case c == '\\':
			s.next()
		case c == '"':
			return true
		}
	}
}

func checkVVP(s *source, _ want) error {
	var carry []byte
	first, whole := s.line(&carry)
	if !whole || !bytes.HasPrefix(first, []byte("#!")) || !bytes.HasSuffix(first, []byte("vvp")) {
		return notWhole("its first line is not that of a vvp program")
	}
	version, want, names := false, -1, 0
	for {
		line, whole := s.line(&carry)
		switch {
		case line == nil:
			if !version || want < 0 || names != want {
				return notWhole("the table of file names is not complete")
			}
			return nil
		case !whole:
			return notWhole("ends inside a line")
		case want >= 0:
			quoted := bytes.TrimSpace(line)
			if len(quoted) < 3 || quoted[0] != '"' || !bytes.HasSuffix(quoted, []byte(`";`)) {
				return notWhole("the table of file names is not last")
			}
			names++
		case bytes.HasPrefix(line, []byte(":ivl_version ")):
			version = true
		case bytes.HasPrefix(line, []byte(":file_names ")):
			digits, ok := bytes.CutSuffix(line[len(":file_names "):], []byte(";"))
			n, err := strconv.Atoi(string(digits))
			if !ok || err != nil || n < 0 {
				return notWhole("the table of file names has no length")
			}
			want = n
		}
	}
}
