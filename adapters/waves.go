package adapters

import (
	"bytes"
	"strconv"
)

// checkVCD: IEEE 1364-2005, clause 18.2. Commands between the changes ($dumpvars ... $end, $comment) are skipped by line.
func checkVCD(s *source, _ want) error {
	header, inComment, lines := true, false, 0
	now := uint64(0)
	for {
		line, whole := s.line()
		if line == nil {
			break
		}
		lines++
		if !whole {
			return notWhole("ends inside line %d", lines)
		}
		line = bytes.TrimSuffix(line, []byte("\r"))
		switch {
		case header:
			if bytes.IndexByte(line, 0) >= 0 {
				return notWhole("line %d holds a NUL byte", lines)
			}
			header = !bytes.Contains(line, []byte("$enddefinitions"))
			if !header && !bytes.HasSuffix(bytes.TrimSpace(line), []byte("$end")) {
				return notWhole("line %d: $enddefinitions without $end", lines)
			}
		case inComment:
			inComment = !bytes.Contains(line, []byte("$end"))
		case len(line) == 0:
		case line[0] == '#':
			t, err := strconv.ParseUint(string(line[1:]), 10, 64)
			if err != nil || t < now {
				return notWhole("line %d: the time is not a number, or falls", lines)
			}
			now = t
		case bytes.HasPrefix(line, []byte("$comment")):
			inComment = !bytes.Contains(line, []byte("$end"))
		case line[0] == '$':
			switch string(line) {
			case "$dumpvars", "$dumpon", "$dumpoff", "$dumpall", "$end":
			default:
				return notWhole("line %d is not a command of VCD", lines)
			}
		case !wholeChange(line):
			return notWhole("line %d is not a whole value change", lines)
		}
	}
	if header {
		return notWhole("the header has no $enddefinitions")
	}
	return nil
}

// wholeChange reports whether line is a value and an identifier: 1!, b0101 !, r1.5 !, sTEXT !.
func wholeChange(line []byte) bool {
	value, id, vector := bytes.Cut(line, []byte(" "))
	switch line[0] {
	case '0', '1', 'x', 'X', 'z', 'Z':
		return !vector && printable(line[1:])
	case 'b', 'B':
		return vector && len(value) > 1 && len(bytes.Trim(value[1:], "01xXzZ")) == 0 && printable(id)
	case 'r', 'R', 's':
		return vector && printable(value) && printable(id)
	}
	return false
}

func printable(id []byte) bool {
	for _, c := range id {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return len(id) > 0
}
