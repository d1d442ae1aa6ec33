// rows of inputs.hex through ${name}, compared with outputs.hex; what it gives goes to results.hex
// text sha256: ${open}
`timescale 1ns/1ns
module ${name}_tb;
  parameter ROWS = ${rows};
  reg [${x}:0] inputs [0:ROWS-1];
  reg [${y}:0] expected [0:ROWS-1];
  reg [${x}:0] x;
  wire [${y}:0] y;
  integer i, seen, differ, file;
  reg clk, rst, in_valid;
  wire out_valid;
  always @(negedge clk) if (out_valid && seen < ROWS) begin
    if (y !== expected[seen]) differ = differ + 1;
    $$fdisplay(file, "%h", y);
    seen = seen + 1;
  end
  ${name} network_under_test (.clk(clk), .rst(rst), .in_valid(in_valid), .x(x), .out_valid(out_valid),
    ${outputs});
  initial begin
    $$readmemh("inputs.hex", inputs);
    $$readmemh("outputs.hex", expected);
    file = $$fopen("results.hex");
    seen = 0;
    differ = 0;
    clk = 0; rst = 1; in_valid = 0; x = 0;
    #1 clk = 1; #1 clk = 0; rst = 0;
    for (i = 0; i < ROWS + ${latency}; i = i + 1) begin
      in_valid = i < ROWS;
      if (i < ROWS) x = inputs[i];
      #1 clk = 1; #1 clk = 0;
    end
    #1;
    $$fclose(file);
    $$display("%0d of %0d rows differ", differ + ROWS - seen, ROWS);
    $$finish;
  end
endmodule
