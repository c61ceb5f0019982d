package house

import "os"

func errorlint(err error) bool { return err == os.ErrNotExist }
