package a

import "os"

type errno int

func (errno) Error() string { return "" }

func raw() (int, errno) { return 0, 0 }

func bad(f *os.File, e error) {
	g, _ := os.Open("x") // want `an error is ignored without a reason`
	_ = g.Close()        // want `an error is ignored without a reason`
	_ = e                // want `an error is ignored without a reason`
	_, _ = raw()         // want `an error is ignored without a reason`
	_ = f.Close()        //nolint // want `an error is ignored without a reason`
	var _ = f.Sync()     // want `an error is ignored without a reason`
	n, _ := f.Write(     // want `an error is ignored without a reason`
		nil,
	)
	_ = n
}

func good(f *os.File, e error, m map[string]error) {
	g, _ := os.Open("x") // absent is as good as empty
	_ = g.Close()        // opened for reading
	_ = f.Close()        /* opened for reading */
	_, ok := m["x"]
	_, is := e.(errno)
	_, _ = ok, is
	_ = f.Name()
	_ = func() error {
		return nil
	}() // it cannot fail
}

var _ error = errno(0)
