// ${name}: made by htaf of the integer program ${digest}
// text sha256: ${open}
// x: ${inputs} numbers of ${x_width} bits in ${x_low} to ${x_high}, the first lowest
// y: ${outputs} numbers of ${y_width} bits, ${signed}; one times 2 ** ${exponent} / ${divisor} is an output of the network
${meaning}// latency: ${depth} clocks, a row every clock
module ${name} (clk, rst, in_valid, x, out_valid, y${label_port});
  input clk, rst, in_valid;
  output out_valid;
  input [${x_last}:0] x;
  output [${y_last}:0] y;
${label_output}${made}
${assigned}
  reg [${last}:0] valid;
  assign out_valid = valid[${last}];
  always @(posedge clk) begin
    valid <= rst ? ${depth}'d0 : ${follow};
${registers}  end
endmodule
