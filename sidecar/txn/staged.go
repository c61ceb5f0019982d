package txn

import "io/fs"

// stagedFS shows a job directory in which nobody writes any more. It opens nothing but regular files and directories:
// a FIFO would block, a link would leave.
type stagedFS struct{ dir fs.FS }

// Open implements fs.FS.
func (s stagedFS) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	for end := range len(name) + 1 {
		if end < len(name) && name[end] != '/' {
			continue
		}
		st, err := fs.Lstat(s.dir, name[:end])
		if err != nil {
			return nil, err
		}
		if !st.IsDir() && (end < len(name) || !st.Mode().IsRegular()) {
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
		}
	}
	return s.dir.Open(name)
}
