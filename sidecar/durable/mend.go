package durable

import (
	"errors"
	"io/fs"
	"os"
)

// Mend gives a file or directory of our own user its mode back if it lacks one of the owner's bits: a tool of the same
// user can take them, as Landlock does not stop chmod(2). What is not there, or somebody else's, stays as it is. Before
// Linux 6.6 it can mend what is open (an empty name) alone.
func Mend(fsys FS, at Name, mode uint32) error {
	st, err := fsys.Stat("durable.mend.stat", at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ours := (st.Type == Dir || st.Type == Regular) && st.UID == uint32(os.Geteuid())
	if owners := mode & 0o700; err != nil || !ours || st.Mode&owners == owners {
		return err
	}
	return fsys.Chmod("durable.mend.chmod", at, st.Mode|mode)
}
