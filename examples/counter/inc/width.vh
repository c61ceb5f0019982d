`ifndef WIDTH
`define WIDTH 8
`endif
