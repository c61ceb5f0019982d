package adapters

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strconv"
)

func checkWave(s *source, w want) error {
	if w.ext == ".fst" {
		return checkFST(s, w)
	}
	return checkVCD(s, w)
}

// Block types of FST. Source: GTKWave fstapi.h, enum fstBlockType.
const (
	fstHeader   = 0
	fstGeometry = 3
	fstHier     = 4
	fstHierLZ4  = 6
	fstHierDuo  = 7
	fstDynamic2 = 8
)

// checkFST walks the chain: one byte of type, eight of length (big-endian, itself included). The writer puts type 255 (skip) in
// front of a block until it is whole, so that an unfinished one is refused.
func checkFST(s *source, _ want) error {
	geometry, hierarchy := false, false
	for n := 0; ; n++ {
		var head [9]byte
		if _, err := io.ReadFull(s, head[:]); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return notWhole("ends inside a block's head")
		}
		kind, length := head[0], int64(binary.BigEndian.Uint64(head[1:])) // one that is too large is negative
		switch {
		case n == 0 && (kind != fstHeader || length != 329):
			return notWhole("does not begin with the header of an FST file")
		case n > 0 && (kind == fstHeader || kind > fstDynamic2) || length < 8:
			return notWhole("block %d has type %d and length %d", n, kind, length)
		}
		if _, err := io.CopyN(io.Discard, s, length-8); err != nil {
			return notWhole("block %d is cut", n)
		}
		geometry = geometry || kind == fstGeometry
		hierarchy = hierarchy || kind == fstHier || kind == fstHierLZ4 || kind == fstHierDuo
	}
	if !geometry || !hierarchy {
		return notWhole("has no geometry or hierarchy, which are written at the end")
	}
	return nil
}

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
